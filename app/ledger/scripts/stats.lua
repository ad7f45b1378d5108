-- The counts as they stand; nothing is scanned. ARGV: 1 tenant or ''.
-- Returns {now, live flat, peak, oldest queued ms or 0, pace flat, orphans flat, reclaimed flat,
--   creating, starting, failed flat, anomalies flat}
local tenant = ARGV[1]
local suffix = tenant ~= '' and ':' .. tenant or ''
local oldest = 0
if tenant == '' then
  oldest = tonumber(call('ZRANGE', P .. 'qall', 0, 0, 'WITHSCORES')[2] or '0')
else
  for _, run in ipairs(call('LRANGE', P .. 'ql:' .. tenant, 0, 99)) do
    local id = call('ZRANGE', P .. 'qz:' .. run .. ':' .. tenant, 0, 0)[1]
    local at = id and tonumber(call('ZSCORE', P .. 'qall', id) or '0') or 0
    if at > 0 and (oldest == 0 or at < oldest) then oldest = at end
  end
end
return {tostring(NOW), call('HGETALL', P .. 'n' .. suffix), call('HGET', P .. 'peak', tenant ~= '' and 't:' .. tenant or '') or '0',
  tostring(oldest), call('HGETALL', P .. 'pace'), call('HGETALL', P .. 'orphans'), call('HGETALL', P .. 'reclaimed' .. suffix),
  call('HGET', P .. 'n', 'creating') or '0', call('HGET', P .. 'n', 'starting') or '0',
  call('HGETALL', P .. 'failed' .. suffix), tenant == '' and call('HGETALL', P .. 'anomalies') or {}}
