-- The report's raw numbers. ARGV: 1 run. Returns {now, field, value, ...}; {} when unknown.
if call('EXISTS', P .. 'run:' .. ARGV[1]) == 0 then return {} end
return {tostring(NOW), unpack(call('HGETALL', P .. 'rep:' .. ARGV[1]))}
