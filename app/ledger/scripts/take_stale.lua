-- Take over creates whose worker fell silent (or that asked to be tried again); one that was tried too often fails instead.
-- ARGV: 1 worker, 2 limit, 3 claim ms, 4 attempts at most. Returns records.
local out = {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'claims', '-inf', NOW, 'LIMIT', 0, ARGV[2])) do
  local r = load(id)
  if not r or r.state ~= 'creating' then corrupt(id .. ' is claimed but not creating') end
  if r.attempts >= tonumber(ARGV[4]) then
    local last = call('HGET', P .. 'sb:' .. id, 'error')
    r.claim_at = nil
    fail(r, 'backend_error', 'given up after ' .. r.attempts .. ' attempts: ' ..
      (last and last ~= '' and last or 'each time the worker that tried fell silent'))
  else
    local claim_at = NOW + tonumber(ARGV[3])
    call('HSET', P .. 'sb:' .. id, 'worker', ARGV[1], 'claim_at', claim_at)
    call('HINCRBY', P .. 'sb:' .. id, 'attempts', 1)
    call('ZADD', P .. 'claims', claim_at, id)
    out[#out + 1] = dump(id)
  end
end
return out
