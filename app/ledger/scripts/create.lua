-- Write a sandbox down as queued, or find the one that this create made before.
-- ARGV: 1 id, 2 tenant, 3 run or '', 4 idempotency digest or '', 5 fingerprint, 6 lease ms, 7 lifetime ms, 8 '1' when a request
--   waits, 9 hold ms, 10 spec, 11 env, 12 labels, 13 cpu, 14 memory, 15 bound, 16 tenant bound, 17 retention ms, 18 wake ms
-- Returns {'created', wake, record} | {'existing', wake, record} | {'conflict', id} | {'no_run'} | {'run_ended'} |
--   {'full', 'service' or 'tenant'}
local id, tenant, run, idem = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local waiting = ARGV[8] == '1'

local function existing(found)
  local r = load(found)
  if not r then return nil end
  -- The repeated caller waits too: give it the same time to come for it as the first.
  if LIVE[r.state] and not r.claimed then
    local hold = NOW + tonumber(ARGV[9])
    if hold > (r.lease_at or 0) then set_lease(r, hold) end
  end
  -- Whoever made it may have died, or lost the answer, before the worker was woken: `wake` says that a job was meant, not that it is there.
  local wake = 0
  if r.state == 'queued' and call('EXISTS', P .. 'draining') == 0 then
    call('SET', P .. 'wake', '1', 'PX', ARGV[18])
    wake = 1
  end
  return {'existing', wake, dump(found)}
end

-- Taken back because nobody came for it, and nobody was ever told of it: perhaps by our own fault (no API was there to come to). The key
-- is free for a new one, and no longer the old one's to forget.
local function never_answered(found)
  local r = load(found)
  if not r or found == id or LIVE[r.state] or r.claimed or r.reclaim ~= 'hung_up' then return false end
  call('HSET', P .. 'sb:' .. found, 'idem', '')
  return true
end

local key = tenant .. ':' .. idem
if idem ~= '' then
  local known = call('GET', P .. 'idem:' .. key)
  if known then
    local fingerprint, found = string.match(known, '^(%S+) (%S+)$')
    if fingerprint ~= ARGV[5] and load(found) then return {'conflict', found} end
    if not never_answered(found) then
      local answer = existing(found)
      if answer then return answer end
    end
  end
end
local same = existing(id)
if same then return same end

if run ~= '' then
  local owner = call('HMGET', P .. 'run:' .. run, 'tenant', 'state')
  if owner[1] ~= tenant then return {'no_run'} end
  if owner[2] ~= 'open' then return {'run_ended'} end
end
if queued() >= tonumber(ARGV[15]) then return {'full', 'service'} end
if count('n:' .. tenant, 'queued') >= tonumber(ARGV[16]) then return {'full', 'tenant'} end

local lifetime = tonumber(ARGV[7])
local r = {id = id, tenant = tenant, run = run ~= '' and run or nil, state = 'queued', seq = call('INCR', P .. 'seq'),
  ['at:queued'] = NOW, lease_ms = tonumber(ARGV[6]), deadline = NOW + lifetime}
if waiting then r.lease_at = NOW + tonumber(ARGV[9]) else r.lease_at = claimed_lease(r) end
call('HSET', P .. 'sb:' .. id, 'tenant', tenant, 'run', run, 'state', 'queued', 'seq', r.seq, 'lease_ms', ARGV[6],
  'lease_at', r.lease_at or '', 'deadline', r.deadline, 'claimed', waiting and '0' or '1', 'spec', ARGV[10], 'env', ARGV[11],
  'labels', ARGV[12], 'cpu', ARGV[13], 'mem', ARGV[14], 'attempts', 0, 'rev', 1, 'at:queued', NOW,
  'idem', idem ~= '' and key or '')
if idem ~= '' then
  -- Forgotten together with the record; the expiry is only a backstop.
  call('SET', P .. 'idem:' .. key, ARGV[5] .. ' ' .. id, 'PX', lifetime + tonumber(ARGV[17]) + 86400000)
end
set_due(r)
enqueue(r)
bump(tenant, 'queued', 1)
call('ZADD', P .. 'ix:all', r.seq, id)
call('ZADD', P .. 'ix:t:' .. tenant, r.seq, id)
if r.run then
  call('ZADD', P .. 'ix:r:' .. run, r.seq, id)
  call('SADD', P .. 'live:' .. run, id)
  call('HINCRBY', P .. 'rep:' .. run, 'created', 1)
end
call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*', 'id', id, 'state', 'queued', 'rev', 1, 'tenant', tenant, 'run', run)
local wake = call('SET', P .. 'wake', '1', 'NX', 'PX', ARGV[18]) and 1 or 0
return {'created', wake, dump(id)}
