-- The worker has stopped touching this sandbox. While creating: it may be tried again after the delay. Deleting or failed: cleanup
-- need not wait for the claim any more. ARGV: 1 id, 2 worker, 3 delay ms, 4 error, 5 '1' when that was no attempt. Returns 1 when the claim was this worker's.
local r = load(ARGV[1])
if not r or r.worker ~= ARGV[2] then return 0 end
local key = P .. 'sb:' .. r.id
if r.state == 'creating' then
  local at = NOW + tonumber(ARGV[3])
  call('HSET', key, 'claim_at', at, 'worker', '', 'error', cut(ARGV[4], 500))
  call('ZADD', P .. 'claims', at, r.id)
  if ARGV[5] == '1' and r.attempts > 0 then call('HINCRBY', key, 'attempts', -1) end
elseif r.claim_at then
  call('HDEL', key, 'claim_at', 'worker')
  for _, set in ipairs({'clean:urgent', 'clean:bulk'}) do
    if call('ZSCORE', P .. set, r.id) then call('ZADD', P .. set, NOW, r.id) end
  end
end
return 1
