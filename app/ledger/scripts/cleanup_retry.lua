-- Removing it failed: try again later, and say why. ARGV: 1 id, 2 delay ms, 3 error. Returns how often it has failed.
local again = NOW + tonumber(ARGV[2])
for _, set in ipairs({'clean:urgent', 'clean:bulk'}) do
  if call('ZSCORE', P .. set, ARGV[1]) and load(ARGV[1]) then
    call('ZADD', P .. set, again, ARGV[1])
    call('HSET', P .. 'sb:' .. ARGV[1], 'cleanup_error', cut(ARGV[3], 500))
    return call('HINCRBY', P .. 'sb:' .. ARGV[1], 'cleanup_failures', 1)
  end
end
return 0
