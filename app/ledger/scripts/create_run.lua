-- Open a run, or find the one that this call opened before.
-- ARGV: 1 id, 2 tenant, 3 name, 4 labels, 5 lease ms, 6 idempotency digest or '', 7 fingerprint, 8 open runs at most of a tenant
-- Returns {'created' or 'existing', run fields...} | {'conflict', id} | {'full'}
local id, tenant = ARGV[1], ARGV[2]
local function view(status, run)
  local flat = call('HGETALL', P .. 'run:' .. run)
  return {status, 'id', run, 'live', call('SCARD', P .. 'live:' .. run), 'created', call('HGET', P .. 'rep:' .. run, 'created') or '0',
    unpack(flat)}
end
local key = tenant .. ':run:' .. ARGV[6]
if ARGV[6] ~= '' then
  local known = call('GET', P .. 'idem:' .. key)
  if known then
    local fingerprint, found = string.match(known, '^(%S+) (%S+)$')
    if call('EXISTS', P .. 'run:' .. found) == 1 then
      if fingerprint ~= ARGV[7] then return {'conflict', found} end
      return view('existing', found)
    end
  end
end
if call('EXISTS', P .. 'run:' .. id) == 1 then return view('existing', id) end
if call('SCARD', P .. 'open:' .. tenant) >= tonumber(ARGV[8]) then return {'full'} end
local lease_at = NOW + tonumber(ARGV[5])
call('HSET', P .. 'run:' .. id, 'tenant', tenant, 'name', ARGV[3], 'labels', ARGV[4], 'state', 'open', 'created_at', NOW,
  'lease_ms', ARGV[5], 'lease_at', lease_at, 'idem', ARGV[6] ~= '' and key or '')
call('HSET', P .. 'rep:' .. id, 'origin', NOW)
if ARGV[6] ~= '' then call('SET', P .. 'idem:' .. key, ARGV[7] .. ' ' .. id, 'PX', 31 * 86400000) end
local seq = call('INCR', P .. 'seq')
call('ZADD', P .. 'due:run', lease_at, id)
call('SADD', P .. 'open:' .. tenant, id)
call('ZADD', P .. 'ix:runs', seq, id)
call('ZADD', P .. 'ix:runs:' .. tenant, seq, id)
return view('created', id)
