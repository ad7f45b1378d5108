-- One look at what waits. ARGV: 1 wake ms. Returns {queued, stale claims, cleanup due, 1 when a provision job should be enqueued}
local queued = count('n', 'queued')
local stale = call('ZCOUNT', P .. 'claims', '-inf', NOW)
local cleanup = call('ZCOUNT', P .. 'clean:urgent', '-inf', NOW) + call('ZCOUNT', P .. 'clean:bulk', '-inf', NOW)
local wake = 0
if (queued > 0 or stale > 0) and call('EXISTS', P .. 'draining') == 0 and
    call('SET', P .. 'wake', '1', 'NX', 'PX', ARGV[1]) then wake = 1 end
return {queued, stale, cleanup, wake}
