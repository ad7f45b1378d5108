-- Become or stay the one that does a job. ARGV: 1 name, 2 holder, 3 ttl ms (0: step down). Returns the fencing token, or 0.
local key = P .. 'leader:' .. ARGV[1]
local holder, token = string.match(call('GET', key) or '', '^(%S+) (%d+)$')
if holder and holder ~= ARGV[2] then return 0 end
if ARGV[3] == '0' then
  if holder then call('DEL', key) end
  return 0
end
token = holder and tonumber(token) or call('INCR', P .. 'fence')
call('SET', key, ARGV[2] .. ' ' .. token, 'PX', ARGV[3])
return token
