-- The last moment at which ledger and backend were compared in full. ARGV: none to read; 1 moment, 2 leader name, 3 fencing token to set
-- Returns the moment as text ('0': never); '' when the caller does not lead any more.
if #ARGV > 0 then
  local token = string.match(call('GET', P .. 'leader:' .. ARGV[2]) or '', '^%S+ (%d+)$')
  if token ~= ARGV[3] then return '' end
  call('HSET', P .. 'clock', 'agreement', ARGV[1])
end
return call('HGET', P .. 'clock', 'agreement') or '0'
