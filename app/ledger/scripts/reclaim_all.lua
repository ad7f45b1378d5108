-- Take back everything that lives, a bounded number at a time. ARGV: 1 reclaim, 2 limit. Returns how many were moved on.
local ids = call('ZRANGE', P .. 'due', 0, tonumber(ARGV[2]) - 1)
for _, id in ipairs(ids) do
  local r = load(id)
  if not r then corrupt(id .. ' is held but has no record') end
  give_up(r, ARGV[1], '')
end
return #ids
