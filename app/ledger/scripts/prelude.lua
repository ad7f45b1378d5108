-- Shared by every script of the ledger: the clock, reading a record, and the one function (`move`) that changes a state.
--
-- A script decides everything from what it reads, then writes; what it leaves is checked (`corrupt`) so that a broken count or a
-- record in two places is an error at once, not a leak found next week. Keys and their bounds: docs/ledger.md.

local P = KEYS[1]
local call = redis.call
local clock = call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local EVENTS_KEPT = 10000
local RECLAIMS_KEPT = 20000
local RECLAIMS_KEPT_TENANT = 5000
local RECLAIMS_TTL_MS = 7 * 86400000

local FORWARD = {
  queued = {creating = true, deleted = true, failed = true},
  creating = {starting = true, deleting = true, failed = true},
  starting = {ready = true, deleting = true, failed = true},
  ready = {deleting = true, failed = true},
  deleting = {deleted = true},
  deleted = {},
  failed = {},
}
local LIVE = {queued = true, creating = true, starting = true, ready = true}
local URGENT = {deleted = true, cancelled = true, hung_up = true, failed = true}

local function corrupt(text)
  error('SANDMAN-CORRUPT ' .. text)
end

-- Records -----------------------------------------------------------------------------------------------------------------------

local FIELDS = {'tenant', 'run', 'state', 'seq', 'lease_ms', 'lease_at', 'deadline', 'claimed', 'cpu', 'mem', 'attempts',
  'worker', 'claim_at', 'at:queued', 'at:creating', 'at:starting', 'reclaim', 'idem'}
local NUMBERS = {seq = true, lease_ms = true, lease_at = true, deadline = true, cpu = true, mem = true, attempts = true,
  claim_at = true, ['at:queued'] = true, ['at:creating'] = true, ['at:starting'] = true}

-- The fields that decisions need, numbers as numbers; nil when there is no such record. An absent lease_at means: its run holds it.
local function load(id)
  local values = call('HMGET', P .. 'sb:' .. id, unpack(FIELDS))
  if not values[3] then return nil end
  local r = {id = id}
  for i, name in ipairs(FIELDS) do
    local value = values[i]
    if value and value ~= '' then
      if NUMBERS[name] then value = tonumber(value) end
      r[name] = value
    end
  end
  r.claimed = r.claimed == '1'
  return r
end

-- The whole record as a flat list, for Python to decode.
local function dump(id)
  local flat = call('HGETALL', P .. 'sb:' .. id)
  flat[#flat + 1] = 'id'
  flat[#flat + 1] = id
  return flat
end

-- `due` holds exactly the live records, by the moment at which nothing holds them any more.
local function set_due(r)
  local score = r.deadline
  if r.lease_at and r.lease_at < score then score = r.lease_at end
  call('ZADD', P .. 'due', score, r.id)
end

local function set_lease(r, at)
  r.lease_at = at
  call('HSET', P .. 'sb:' .. r.id, 'lease_at', at or '')
  set_due(r)
end

-- What `claim` and `renew` give: a lease of its own, or none because the run holds it.
local function claimed_lease(r)
  if r.run then return nil end
  return NOW + r.lease_ms
end

-- Counts ------------------------------------------------------------------------------------------------------------------------

local function bump(tenant, state, by)
  local all = call('HINCRBY', P .. 'n', state, by)
  local own = call('HINCRBY', P .. 'n:' .. tenant, state, by)
  if all < 0 or own < 0 then corrupt('count of ' .. state .. ' for ' .. tenant) end
  return all, own
end

local function count(key, state)
  return tonumber(call('HGET', P .. key, state) or '0')
end

local function peak(tenant, all, own)
  if all > tonumber(call('HGET', P .. 'peak', '') or '0') then call('HSET', P .. 'peak', '', all) end
  if own > tonumber(call('HGET', P .. 'peak', 't:' .. tenant) or '0') then call('HSET', P .. 'peak', 't:' .. tenant, own) end
end

-- The report of a run: histograms with buckets 10 % wide, exact sums, and what its live sandboxes have used so far --------------------

local BUCKET = math.log(1.1)

local function sample(report, phase, ms)
  local bucket = 0
  if ms >= 1 then bucket = math.floor(math.log(ms) / BUCKET) + 1 end
  call('HINCRBY', report, 'h:' .. phase .. ':' .. bucket, 1)
  call('HINCRBY', report, 's:' .. phase, ms)
  if ms > tonumber(call('HGET', report, 'm:' .. phase) or '-1') then call('HSET', report, 'm:' .. phase, ms) end
end

-- Usage counts from `starting` (placed in the backend) until it is given up. `open:*` keeps n and n x start of those in use, so that
-- usage so far = n x now - sum of starts, without looking at the members. Times are relative to the run's beginning: they stay
-- small enough for exact doubles.
local function usage(report, r, sign)
  local origin = tonumber(call('HGET', report, 'origin') or '0')
  local start = (r['at:starting'] - origin) / 1000
  local cpu, gib = r.cpu or 0, (r.mem or 0) / 1073741824
  local n = call('HINCRBY', report, 'open:n', sign)
  if n < 0 then corrupt('usage of run ' .. r.run) end
  if n == 0 then
    call('HDEL', report, 'open:t', 'open:cpu', 'open:cpu_t', 'open:gib', 'open:gib_t')
  else
    for name, value in pairs({t = start, cpu = cpu, cpu_t = cpu * start, gib = gib, gib_t = gib * start}) do
      call('HINCRBYFLOAT', report, 'open:' .. name, string.format('%.6f', sign * value))
    end
  end
  if sign < 0 then
    local seconds = (NOW - r['at:starting']) / 1000
    call('HINCRBYFLOAT', report, 'sandbox_seconds', string.format('%.3f', seconds))
    call('HINCRBYFLOAT', report, 'cpu_seconds', string.format('%.6f', cpu * seconds))
    call('HINCRBYFLOAT', report, 'gib_seconds', string.format('%.6f', gib * seconds))
  else
    local high = tonumber(call('HGET', report, 'peak') or '0')
    if n > high then call('HSET', report, 'peak', n) end
  end
end

local function account(r, from, to, reason, reclaim)
  if not r.run then return end
  local report = P .. 'rep:' .. r.run
  if to == 'creating' then
    sample(report, 'queued', NOW - r['at:queued'])
  elseif to == 'starting' then
    sample(report, 'creating', NOW - r['at:creating'])
    usage(report, r, 1)
  elseif to == 'ready' then
    sample(report, 'starting', NOW - r['at:starting'])
    sample(report, 'total', NOW - r['at:queued'])
    call('HINCRBY', report, 'ready', 1)
  end
  if (from == 'starting' or from == 'ready') and to ~= 'ready' then usage(report, r, -1) end
  if reason then call('HINCRBY', report, 'f:' .. reason, 1) end
  if reclaim then call('HINCRBY', report, 'r:' .. reclaim, 1) end
end

-- The queue: per tenant a list of its runs that wait, per run a sorted set; `rr` rotates over the tenants ------------------------------

local function queue_key(r)
  return P .. 'qz:' .. (r.run or '-') .. ':' .. r.tenant
end

local function enqueue(r)
  local key = queue_key(r)
  call('ZADD', key, r.seq, r.id)
  if call('ZCARD', key) == 1 then
    if call('RPUSH', P .. 'ql:' .. r.tenant, r.run or '-') == 1 then call('RPUSH', P .. 'rr', r.tenant) end
  end
  call('ZADD', P .. 'qall', NOW, r.id)
end

local function dequeue(r)
  local key = queue_key(r)
  if call('ZREM', key, r.id) == 0 then corrupt(r.id .. ' is queued but in no queue') end
  call('ZREM', P .. 'qall', r.id)
  if call('EXISTS', key) == 0 then
    call('LREM', P .. 'ql:' .. r.tenant, 1, r.run or '-')
    if call('EXISTS', P .. 'ql:' .. r.tenant) == 0 then call('LREM', P .. 'rr', 1, r.tenant) end
  end
end

-- The reclaim log, and forgetting -------------------------------------------------------------------------------------------------

local function log_reclaim(id, tenant, run, reclaim, state, detail)
  local entry = {'id', id, 'tenant', tenant, 'run', run or '', 'reclaim', reclaim, 'state', state,
    'detail', string.sub(detail or '', 1, 500)}
  call('XADD', P .. 'reclaims', 'MAXLEN', '~', RECLAIMS_KEPT, '*', unpack(entry))
  call('HINCRBY', P .. 'reclaimed', reclaim, 1)
  if tenant ~= '' then
    call('XADD', P .. 'reclaims:' .. tenant, 'MAXLEN', '~', RECLAIMS_KEPT_TENANT, '*', unpack(entry))
    call('PEXPIRE', P .. 'reclaims:' .. tenant, RECLAIMS_TTL_MS)
    call('HINCRBY', P .. 'reclaimed:' .. tenant, reclaim, 1)
  end
end

-- Remove every trace of an ended record.
local function forget(id)
  call('ZREM', P .. 'ended', id)
  local r = load(id)
  if not r then return end
  if r.state ~= 'deleted' and r.state ~= 'failed' then corrupt(id .. ' is ' .. r.state .. ' and ended') end
  bump(r.tenant, r.state, -1)
  call('ZREM', P .. 'ix:all', id)
  call('ZREM', P .. 'ix:t:' .. r.tenant, id)
  if r.run then call('ZREM', P .. 'ix:r:' .. r.run, id) end
  if r.idem then call('DEL', P .. 'idem:' .. r.idem) end
  call('DEL', P .. 'sb:' .. id)
end

-- Nothing of it is left in the backend: keep it readable for a while, without its env (which may hold secrets).
local function finish(r)
  local key = P .. 'sb:' .. r.id
  call('HSET', key, 'at:cleaned', NOW)
  call('HDEL', key, 'env', 'worker', 'claim_at', 'address')
  call('ZREM', P .. 'clean:urgent', r.id)
  call('ZREM', P .. 'clean:bulk', r.id)
  call('ZADD', P .. 'ended', NOW, r.id)
end

-- The one way a state changes -------------------------------------------------------------------------------------------------------

-- `more` holds further fields to write. Reason (of failed) and reclaim (of going) are given where they apply.
local function move(r, to, more)
  more = more or {}
  local from = r.state
  if not (FORWARD[from] and FORWARD[from][to]) then corrupt(r.id .. ' from ' .. from .. ' to ' .. to) end
  local key = P .. 'sb:' .. r.id
  local detail = more.detail and string.sub(more.detail, 1, 2000) or nil

  if from == 'queued' then dequeue(r)
  elseif from == 'creating' then call('ZREM', P .. 'claims', r.id)
  elseif from == 'starting' then call('ZREM', P .. 'starting', r.id) end

  local write = {'state', to, 'at:' .. to, NOW}
  for name, value in pairs(more) do
    if name == 'detail' then value = detail end
    write[#write + 1] = name
    write[#write + 1] = value
  end
  call('HSET', key, unpack(write))
  local rev = call('HINCRBY', key, 'rev', 1)
  bump(r.tenant, from, -1)
  local all, own = bump(r.tenant, to, 1)
  r['at:' .. to] = NOW
  account(r, from, to, more.reason, LIVE[from] and more.reclaim or nil)
  if to == 'failed' then
    call('HINCRBY', P .. 'failed', more.reason, 1)
    call('HINCRBY', P .. 'failed:' .. r.tenant, more.reason, 1)
  end
  r.state = to

  if to == 'creating' then
    call('ZADD', P .. 'claims', more.claim_at, r.id)
  elseif to == 'starting' then
    call('ZADD', P .. 'starting', NOW, r.id)
  elseif to == 'ready' then
    peak(r.tenant, all, own)
  elseif LIVE[from] then
    -- It is over for its caller. What the backend may hold of it is cleaned up; not before a create in flight has let go of it.
    if call('ZREM', P .. 'due', r.id) == 0 then corrupt(r.id .. ' was live but held by nothing') end
    if r.run then call('SREM', P .. 'live:' .. r.run, r.id) end
    log_reclaim(r.id, r.tenant, r.run, more.reclaim, from, detail or more.reason)
    if from == 'queued' then
      finish(r)
    else
      local at = NOW
      if from == 'creating' and r.worker and (r.claim_at or 0) > NOW then at = r.claim_at end
      call('ZADD', P .. (URGENT[more.reclaim] and 'clean:urgent' or 'clean:bulk'), at, r.id)
    end
  else
    finish(r)
  end
  call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*', 'id', r.id, 'state', to, 'rev', rev, 'tenant', r.tenant,
    'run', r.run or '')
end

-- Take back whatever it is: a queued one is gone at once, the others are cleaned up.
local function give_up(r, reclaim, detail)
  if reclaim == 'deleted' and r.state ~= 'ready' then reclaim = 'cancelled' end
  move(r, r.state == 'queued' and 'deleted' or 'deleting', {reclaim = reclaim, detail = detail ~= '' and detail or nil})
end

local function fail(r, reason, detail)
  move(r, 'failed', {reason = reason, detail = detail, reclaim = 'failed'})
end
