-- Find what nobody holds: passed deadlines and leases, lost runs, the members of ended runs. Then forget what ended long ago.
-- ARGV: 1 limit, 2 outage threshold ms, 3 outage grace ms, 4 ended retention ms, 5 ended bound, 6 run retention ms, 7 run bound
--   8 wake ms
-- Returns {queued, stale claims, cleanup due, starting, 1 when a provision job should be enqueued, anomalies so far,
--   id, reclaim, 'sandbox' or 'run', ...}
local limit, out = tonumber(ARGV[1]), {0, 0, 0, 0, 0, 0}
local function note(id, reclaim, kind)
  out[#out + 1] = id
  out[#out + 1] = reclaim
  out[#out + 1] = kind
end

-- Nobody looked for a while: Redis, the service or the machine was away, and holders could not renew either.
local seen = call('HMGET', P .. 'clock', 'expire', 'hold')
-- A hold is short; a longer one was left behind by a clock that has been put back.
local hold = math.min(tonumber(seen[2] or '0'), NOW + tonumber(ARGV[3]))
local gap = seen[1] and NOW - tonumber(seen[1]) or 0
if gap > tonumber(ARGV[2]) then hold = NOW + math.min(gap, tonumber(ARGV[3])) end
call('HSET', P .. 'clock', 'expire', NOW, 'hold', hold)

for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'due', '-inf', NOW, 'LIMIT', 0, limit)) do
  local r = load(id)
  if not r then
    drop(id, 'due')
  elseif not LIVE[r.state] then
    anomaly('misplaced', id .. ' is ' .. r.state .. ' and in due')
    call('ZREM', P .. 'due', id)
  elseif r.deadline <= NOW then
    if r.state == 'ready' then
      give_up(r, 'lifetime', '')
      note(id, 'lifetime', 'sandbox')
    else
      fail(r, 'deadline', 'its lifetime passed while it was ' .. r.state)
      note(id, 'failed', 'sandbox')
    end
  elseif r.lease_at and r.lease_at <= NOW then
    if hold > NOW then
      set_lease(r, hold)
    else
      local reclaim = r.claimed and 'lease_expired' or 'hung_up'
      give_up(r, reclaim, '')
      note(id, reclaim, 'sandbox')
    end
  else
    anomaly('misplaced', id .. ' is in due too early')
    set_due(r)
  end
end

for _, run in ipairs(call('ZRANGEBYSCORE', P .. 'due:run', '-inf', NOW, 'LIMIT', 0, limit)) do
  if call('HGET', P .. 'run:' .. run, 'state') ~= 'open' then
    -- What it still owns is taken back below.
    anomaly('lost', run .. ' is in due:run and no open run')
    call('ZREM', P .. 'due:run', run)
    call('SADD', P .. 'ending', run)
  elseif hold > NOW then
    call('HSET', P .. 'run:' .. run, 'lease_at', hold)
    call('ZADD', P .. 'due:run', hold, run)
  else
    call('HSET', P .. 'run:' .. run, 'state', 'ended', 'ended_at', NOW, 'reclaim', 'run_lease_expired', 'lease_at', '')
    call('ZREM', P .. 'due:run', run)
    call('SREM', P .. 'open:' .. call('HGET', P .. 'run:' .. run, 'tenant'), run)
    call('SADD', P .. 'ending', run)
    note(run, 'run_lease_expired', 'run')
  end
end

local left = limit
for _, run in ipairs(call('SRANDMEMBER', P .. 'ending', 8)) do
  local reclaim = call('HGET', P .. 'run:' .. run, 'reclaim') or 'run_ended'
  for _, id in ipairs(call('SRANDMEMBER', P .. 'live:' .. run, left)) do
    local r = load(id)
    if r and LIVE[r.state] and r.run == run then
      give_up(r, reclaim, '')
      note(id, reclaim, 'sandbox')
    else
      if r then anomaly('misplaced', id .. ' is ' .. r.state .. ' and in live:' .. run) else drop(id, 'live:' .. run) end
      call('SREM', P .. 'live:' .. run, id)
    end
    left = left - 1
  end
  if call('EXISTS', P .. 'live:' .. run) == 0 then
    call('SREM', P .. 'ending', run)
    call('ZADD', P .. 'ended:run', NOW, run)
  end
  if left <= 0 then break end
end

local function purge(key, keep_ms, bound, forget_one)
  local old = call('ZRANGEBYSCORE', P .. key, '-inf', NOW - keep_ms, 'LIMIT', 0, 100)
  local over = call('ZCARD', P .. key) - bound
  if over > #old then old = call('ZRANGE', P .. key, 0, math.min(over, 500) - 1) end
  for _, id in ipairs(old) do forget_one(id) end
end
purge('ended', tonumber(ARGV[4]), tonumber(ARGV[5]), forget)
purge('ended:run', tonumber(ARGV[6]), tonumber(ARGV[7]), function(run)
  local tenant = call('HGET', P .. 'run:' .. run, 'tenant')
  local idem = call('HGET', P .. 'run:' .. run, 'idem')
  if idem and idem ~= '' then call('DEL', P .. 'idem:' .. idem) end
  call('DEL', P .. 'run:' .. run, P .. 'rep:' .. run)
  call('ZREM', P .. 'ix:runs', run)
  if tenant then call('ZREM', P .. 'ix:runs:' .. tenant, run) end
  call('ZREM', P .. 'ended:run', run)
end)
out[1] = queued()
out[2] = call('ZCOUNT', P .. 'claims', '-inf', NOW)
out[3] = call('ZCOUNT', P .. 'clean:urgent', '-inf', NOW) + call('ZCOUNT', P .. 'clean:bulk', '-inf', NOW)
out[4] = call('ZCARD', P .. 'starting')
-- Work waits and nobody drains it: exactly one caller is told to wake a worker, again and again until one comes.
if out[1] + out[2] > 0 and call('EXISTS', P .. 'draining') == 0 and
    call('SET', P .. 'wake', '1', 'NX', 'PX', ARGV[8]) then out[5] = 1 end

-- A lost key would never be missed by those who look for what it says. Said once, until an audit has seen to it.
local sums, live = call('HMGET', P .. 'n', 'queued', 'creating', 'starting', 'ready'), 0
for i, set in ipairs({'qall', 'claims', 'starting', 'due'}) do
  local n = tonumber(sums[i] or '0')
  live = live + n
  if call('ZCARD', P .. set) ~= (set == 'due' and live or n) and call('HSETNX', P .. 'clock', 'differ', set) == 1 then
    anomaly('count', set .. ' does not hold as many as there should be')
  end
end
for _, n in ipairs(call('HVALS', P .. 'anomalies')) do out[6] = out[6] + tonumber(n) end
return out
