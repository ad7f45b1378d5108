-- Feedback on the rate: grow while the backend keeps up, shrink when it says so.
-- ARGV: 1 ok, 2 throttled, 3 mean latency ms, 4 retry after ms, 5 initial rate, 6 least, 7 most, 8 latency target ms, 9 window
-- Returns {rate, window, reason}
local ok, throttled, latency = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local pace = call('HMGET', P .. 'pace', 'rate', 'threshold', 'cut_at', 'hold_until', 'window', 'reason')
local rate = tonumber(pace[1] or ARGV[5])
local threshold = tonumber(pace[2] or ARGV[7])
local cut_at = tonumber(pace[3] or '0')
local hold_until = held_until(tonumber(pace[4] or '0'))
local most = tonumber(ARGV[9])
local window = math.min(tonumber(pace[5] or most), most)
local reason = pace[6] or 'initial'

if throttled > 0 or (ok > 0 and latency > tonumber(ARGV[8])) then
  -- Answers to creates sent before the last cut say nothing about the new rate: one cut a second.
  if NOW - cut_at >= 1000 then
    local factor = throttled > 0 and 0.5 or 0.8
    rate = math.max(tonumber(ARGV[6]), rate * factor)
    window = math.max(math.min(4, most), math.floor(window * factor))
    threshold = rate
    cut_at = NOW
    reason = throttled > 0 and 'throttled' or 'slow'
  end
elseif ok > 0 then
  -- Below the last rate that went wrong it doubles in about 3 s of full use; above it grows by 2 creates a second each second.
  if rate < threshold then rate = rate + ok * 0.25 else rate = rate + ok * 2 / rate end
  rate = math.min(tonumber(ARGV[7]), rate)
  window = math.min(most, window + math.max(1, math.floor(ok / 4)))
  reason = rate >= tonumber(ARGV[7]) and 'steady' or 'growing'
end
if tonumber(ARGV[4]) > 0 then hold_until = math.max(hold_until, NOW + math.min(HOLD_MOST_MS, tonumber(ARGV[4]))) end
call('HSET', P .. 'pace', 'rate', tostring(rate), 'threshold', tostring(threshold), 'cut_at', cut_at, 'hold_until', hold_until,
  'window', window, 'reason', reason)
return {tostring(rate), window, reason}
