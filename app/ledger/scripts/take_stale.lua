-- Take over creates whose worker fell silent (or that asked to be tried again); one that was tried too often fails instead.
-- A create that has been in flight when a worker died twice may be what kills them: such suspects are only given out one at a time,
-- to a worker that does nothing else meanwhile, so that they cannot use up the attempts of others.
-- ARGV: 1 worker, 2 limit, 3 claim ms, 4 attempts at most, 5 '1' when the worker has nothing else in flight
-- Returns {how many suspects were left, record...}
local out, suspects, alone = {}, 0, false
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'claims', '-inf', NOW, 'LIMIT', 0, ARGV[2])) do
  local r = load(id)
  local key = P .. 'sb:' .. id
  -- A claim that was let go of has no worker: that attempt ended in an error, not in a death.
  local crashes = tonumber(call('HGET', key, 'crashes') or '0') + (r and r.worker and 1 or 0)
  if not r then
    drop(id, 'claims')
  elseif r.state ~= 'creating' then
    anomaly('misplaced', id .. ' is ' .. r.state .. ' and claimed')
    call('ZREM', P .. 'claims', id)
  elseif r.attempts >= tonumber(ARGV[4]) then
    local last = call('HGET', key, 'error')
    r.claim_at = nil
    fail(r, 'backend_error', 'given up after ' .. r.attempts .. ' attempts: ' ..
      (last and last ~= '' and last or 'each time the worker that tried fell silent'))
  elseif alone or (crashes >= 2 and (#out > 0 or ARGV[5] ~= '1')) then
    if crashes >= 2 then suspects = suspects + 1 end
  else
    local claim_at = NOW + tonumber(ARGV[3])
    call('HSET', key, 'worker', ARGV[1], 'claim_at', claim_at, 'crashes', crashes)
    call('HINCRBY', key, 'attempts', 1)
    call('ZADD', P .. 'claims', claim_at, id)
    out[#out + 1] = dump(id)
    alone = crashes >= 2
  end
end
return {suspects, unpack(out)}
