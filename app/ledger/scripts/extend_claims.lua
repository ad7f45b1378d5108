-- Keep one's creates. ARGV: 1 worker, 2 claim ms, 3... ids. Returns the ids that are no longer this worker's to create.
local lost = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local r = load(id)
  if r and r.state == 'creating' and r.worker == ARGV[1] then
    call('HSET', P .. 'sb:' .. id, 'claim_at', NOW + tonumber(ARGV[2]))
    call('ZADD', P .. 'claims', NOW + tonumber(ARGV[2]), id)
  else
    lost[#lost + 1] = id
  end
end
return lost
