-- Renew a lease; with seconds, its length changes for later renewals too. ARGV: 1 id, 2 ms or ''.
-- Returns {'renewed' or 'ended', record}; {} when unknown.
local r = load(ARGV[1])
if not r then return {} end
if not LIVE[r.state] then return {'ended', dump(r.id)} end
if ARGV[2] ~= '' then
  r.lease_ms = tonumber(ARGV[2])
  call('HSET', P .. 'sb:' .. r.id, 'lease_ms', ARGV[2])
end
if not r.claimed then
  call('HSET', P .. 'sb:' .. r.id, 'claimed', '1')
  call('HINCRBY', P .. 'sb:' .. r.id, 'rev', 1)
end
set_lease(r, claimed_lease(r))
return {'renewed', dump(r.id)}
