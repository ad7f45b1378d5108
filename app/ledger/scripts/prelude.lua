-- Shared by every script of the ledger: the clock, reading a record, and the one function (`move`) that changes a state.
--
-- A script decides everything from what it reads, then writes. What it finds and what it leaves is checked: an index that contradicts a
-- record is mended on the spot, counted and written down (`anomaly`), because one bad entry must never stop the work on all the others.
-- Keys and their bounds: docs/ledger.md.

local P = KEYS[1]
local call = redis.call
local clock = call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local EVENTS_KEPT = 10000
local RECLAIMS_KEPT = 20000
local RECLAIMS_KEPT_TENANT = 5000
local RECLAIMS_TTL_MS = 7 * 86400000
local ANOMALIES_KEPT = 200
local UNREADABLE_TTL_MS = 7 * 86400000

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

-- Only for a step that no script may ask for, before anything is written.
local function corrupt(text)
  error('SANDMAN-CORRUPT ' .. text)
end

-- Something that must not be. Kinds: 'lost' (an index names a record that is not there), 'misplaced' (it names one that belongs
-- elsewhere), 'missing' (a record is not where it belongs), 'count'. The caller mends it and goes on.
local function anomaly(kind, text)
  call('HINCRBY', P .. 'anomalies', kind, 1)
  call('XADD', P .. 'anomalies:log', 'MAXLEN', '~', ANOMALIES_KEPT, '*', 'kind', kind, 'text', text)
end

-- The beginning of a text, cut between characters: half of one could not be read back.
local function cut(text, bytes)
  if #text <= bytes then return text end
  while bytes > 0 and string.byte(text, bytes + 1) >= 128 and string.byte(text, bytes + 1) < 192 do bytes = bytes - 1 end
  return string.sub(text, 1, bytes)
end

-- Records -----------------------------------------------------------------------------------------------------------------------

local FIELDS = {'tenant', 'run', 'state', 'seq', 'lease_ms', 'lease_at', 'deadline', 'claimed', 'cpu', 'mem', 'attempts',
  'worker', 'claim_at', 'at:queued', 'at:creating', 'at:starting', 'at:cleaned', 'reclaim', 'idem'}
local NUMBERS = {seq = true, lease_ms = true, lease_at = true, deadline = true, cpu = true, mem = true, attempts = true,
  claim_at = true, ['at:queued'] = true, ['at:creating'] = true, ['at:starting'] = true, ['at:cleaned'] = true}
local NEEDED = {'tenant', 'seq', 'lease_ms', 'deadline', 'attempts', 'at:queued'}

-- The fields that decisions need, numbers as numbers; nil when there is no such record, or only a part of one. An absent lease_at means:
-- its run holds it.
local function load(id)
  local values = call('HMGET', P .. 'sb:' .. id, unpack(FIELDS))
  if not FORWARD[values[3]] then return nil end
  local r = {id = id}
  for i, name in ipairs(FIELDS) do
    local value = values[i]
    if value and value ~= '' then
      if NUMBERS[name] then value = tonumber(value) end
      r[name] = value
    end
  end
  for _, name in ipairs(NEEDED) do
    if not r[name] then return nil end
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

-- `index` names a record that cannot be read: no index names it from now on. What the backend may hold of it is an orphan.
local function drop(id, index)
  anomaly('lost', id .. ' is in ' .. index .. ' and has no readable record')
  for _, set in ipairs({'due', 'claims', 'starting', 'clean:urgent', 'clean:bulk', 'ended', 'qall', 'ix:all'}) do
    call('ZREM', P .. set, id)
  end
  call('PEXPIRE', P .. 'sb:' .. id, UNREADABLE_TTL_MS)
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

local function bump_one(key, state, by)
  local n = call('HINCRBY', P .. key, state, by)
  if n >= 0 then return n end
  anomaly('count', key .. ' has ' .. n .. ' ' .. state)
  call('HSET', P .. key, state, 0)
  return 0
end

local function bump(tenant, state, by)
  return bump_one('n', state, by), bump_one('n:' .. tenant, state, by)
end

local function count(key, state)
  return tonumber(call('HGET', P .. key, state) or '0')
end

-- Counted in the indexes themselves: what gates all admission must not depend on a sum.
local function queued() return call('ZCARD', P .. 'qall') end
local function in_flight_now() return call('ZCARD', P .. 'claims') + call('ZCARD', P .. 'starting') end

local function peak(tenant, all, own)
  if all > tonumber(call('HGET', P .. 'peak', '') or '0') then call('HSET', P .. 'peak', '', all) end
  if own > tonumber(call('HGET', P .. 'peak', 't:' .. tenant) or '0') then call('HSET', P .. 'peak', 't:' .. tenant, own) end
end

-- A pause that the backend asked for is kept, but not for ever: not for an absurd one, nor for one that a jump of the clock left behind.
local HOLD_MOST_MS = 60000
local function held_until(at)
  return at <= NOW + HOLD_MOST_MS and at or 0
end

-- The report of a run: histograms with buckets 10 % wide, exact sums, and what its live sandboxes have used so far --------------------

local BUCKET = math.log(1.1)

local function sample(report, phase, ms)
  ms = math.max(0, ms)
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
  if n < 0 then anomaly('count', 'usage of ' .. r.run .. ' by ' .. n) end
  if n <= 0 then
    call('HDEL', report, 'open:t', 'open:cpu', 'open:cpu_t', 'open:gib', 'open:gib_t')
  else
    for name, value in pairs({t = start, cpu = cpu, cpu_t = cpu * start, gib = gib, gib_t = gib * start}) do
      call('HINCRBYFLOAT', report, 'open:' .. name, string.format('%.6f', sign * value))
    end
  end
  if sign < 0 then
    local seconds = math.max(0, NOW - r['at:starting']) / 1000
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

-- See to it that the tenant and this run of it have their turns. Gives whether they had. (LPOS looks through as many as wait: few.)
local function take_turns(tenant, run)
  local had = true
  for key, name in pairs({['ql:' .. tenant] = run, rr = tenant}) do
    if not call('LPOS', P .. key, name) then
      call('RPUSH', P .. key, name)
      had = false
    end
  end
  return had
end

local function enqueue(r)
  call('ZADD', queue_key(r), r.seq, r.id)
  call('ZADD', P .. 'qall', r['at:queued'], r.id)
  take_turns(r.tenant, r.run or '-')
end

-- Take it out of the queue of that run; what is empty then leaves the rotations. Gives whether it was there.
local function unqueue(id, tenant, run)
  local key = P .. 'qz:' .. run .. ':' .. tenant
  local was = call('ZREM', key, id)
  if call('EXISTS', key) == 0 then
    call('LREM', P .. 'ql:' .. tenant, 0, run)
    if call('EXISTS', P .. 'ql:' .. tenant) == 0 then call('LREM', P .. 'rr', 0, tenant) end
  end
  return was == 1
end

local function dequeue(r)
  if not unqueue(r.id, r.tenant, r.run or '-') then anomaly('missing', r.id .. ' was queued and in no queue') end
  call('ZREM', P .. 'qall', r.id)
end

-- The reclaim log, and forgetting -------------------------------------------------------------------------------------------------

local function log_reclaim(id, tenant, run, reclaim, state, detail)
  local entry = {'id', id, 'tenant', tenant, 'run', run or '', 'reclaim', reclaim, 'state', state,
    'detail', cut(detail or '', 500)}
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
  local r = load(id)
  if not r then return drop(id, 'ended') end
  call('ZREM', P .. 'ended', id)
  if not r['at:cleaned'] then return anomaly('misplaced', id .. ' is ' .. r.state .. ' and in ended') end
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
  local detail = more.detail and cut(more.detail, 2000) or nil

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
    if call('ZREM', P .. 'due', r.id) == 0 then anomaly('missing', r.id .. ' was live and not in due') end
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

local function fail(r, reason, detail, final)
  move(r, 'failed', {reason = reason, detail = detail, reclaim = 'failed', final = final == '1' and '1' or nil})
end
