-- Add commands that ended to a run's report. ARGV: 1 run, then triples: field, kind ('i' add | 'f' add float | 'm' maximum), value
if call('EXISTS', P .. 'run:' .. ARGV[1]) == 0 then return 0 end
local report = P .. 'rep:' .. ARGV[1]
for i = 2, #ARGV, 3 do
  local field, kind, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind == 'i' then
    call('HINCRBY', report, field, value)
  elseif kind == 'f' then
    call('HINCRBYFLOAT', report, field, value)
  elseif tonumber(value) > tonumber(call('HGET', report, field) or '-1') then
    call('HSET', report, field, value)
  end
end
return 1
