-- One page of runs, newest first. ARGV: 1 tenant or '', 2 limit, 3 cursor or ''. Returns {next or '', run fields...}
local index = ARGV[1] ~= '' and P .. 'ix:runs:' .. ARGV[1] or P .. 'ix:runs'
local limit = tonumber(ARGV[2])
local flat = call('ZREVRANGEBYSCORE', index, ARGV[3] ~= '' and '(' .. ARGV[3] or '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, limit + 1)
local out = {''}
for i = 1, math.min(#flat, limit * 2), 2 do
  local id = flat[i]
  out[#out + 1] = {'id', id, 'live', call('SCARD', P .. 'live:' .. id),
    'created', call('HGET', P .. 'rep:' .. id, 'created') or '0', unpack(call('HGETALL', P .. 'run:' .. id))}
end
if #flat > limit * 2 then out[1] = flat[limit * 2] end
return out
