-- Take back everything that lives, a bounded number at a time. ARGV: 1 reclaim, 2 limit. Returns how many were moved on.
local ids = call('ZRANGE', P .. 'due', 0, tonumber(ARGV[2]) - 1)
for _, id in ipairs(ids) do
  local r = load(id)
  if not r then
    drop(id, 'due')
  elseif LIVE[r.state] then
    give_up(r, ARGV[1], '')
  else
    anomaly('misplaced', id .. ' is ' .. r.state .. ' and in due')
    call('ZREM', P .. 'due', id)
  end
end
return #ids
