-- A waiting caller has its answer: from now on the sandbox's own lease (or its run) holds it.
-- ARGV: 1 id. Returns the record; {} when unknown.
local r = load(ARGV[1])
if not r then return {} end
if LIVE[r.state] and not r.claimed then
  call('HSET', P .. 'sb:' .. r.id, 'claimed', '1')
  call('HINCRBY', P .. 'sb:' .. r.id, 'rev', 1)
  set_lease(r, claimed_lease(r))
end
return dump(r.id)
