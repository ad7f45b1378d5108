-- One run: read it, renew its lease, or end it. ARGV: 1 id, 2 'get' | 'renew' | 'end', 3 for renew: ms or ''; for end: reclaim
-- Returns {'open' or 'ended' (before the call), run fields...}; {} when unknown.
local id, key = ARGV[1], P .. 'run:' .. ARGV[1]
local state = call('HGET', key, 'state')
if not state then return {} end
if state == 'open' and ARGV[2] == 'renew' then
  if ARGV[3] ~= '' then call('HSET', key, 'lease_ms', ARGV[3]) end
  local lease_at = NOW + tonumber(call('HGET', key, 'lease_ms'))
  call('HSET', key, 'lease_at', lease_at)
  call('ZADD', P .. 'due:run', lease_at, id)
elseif state == 'open' and ARGV[2] == 'end' then
  call('HSET', key, 'state', 'ended', 'ended_at', NOW, 'reclaim', ARGV[3], 'lease_at', '')
  if call('ZREM', P .. 'due:run', id) == 0 then anomaly('missing', id .. ' was open and not in due:run') end
  call('SREM', P .. 'open:' .. call('HGET', key, 'tenant'), id)
  call('SADD', P .. 'ending', id)
  call('XADD', P .. 'events', 'MAXLEN', '~', EVENTS_KEPT, '*', 'id', id, 'state', 'run_ended', 'rev', 0, 'tenant',
    call('HGET', key, 'tenant'), 'run', id)
end
return {state, 'id', id, 'live', call('SCARD', P .. 'live:' .. id), 'created', call('HGET', P .. 'rep:' .. id, 'created') or '0',
  unpack(call('HGETALL', key))}
