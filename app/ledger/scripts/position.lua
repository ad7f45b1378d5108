-- How many sandboxes are admitted before this one, if nobody else comes: exact for the round robin over tenants, then runs.
-- ARGV: 1 id. Returns -1 when it does not wait.
local r = load(ARGV[1])
if not r or r.state ~= 'queued' then return -1 end
local rank = call('ZRANK', queue_key(r), r.id)
if not rank then
  anomaly('missing', r.id .. ' is queued and in no queue')
  enqueue(r)
  rank = call('ZRANK', queue_key(r), r.id)
end

-- Turns of one list before ours: those ahead of us in the rotation get rank+1 turns, those behind get rank; none more than it has.
local function turns(list, own, own_rank, size_of)
  local ahead, before, seen = 0, own_rank, false
  for _, name in ipairs(list) do
    if name == own then
      seen = true
    else
      ahead = math.min(size_of(name), seen and own_rank or own_rank + 1)
      before = before + ahead
    end
  end
  return before
end

local within = turns(call('LRANGE', P .. 'ql:' .. r.tenant, 0, 999), r.run or '-', rank, function(run)
  return call('ZCARD', P .. 'qz:' .. run .. ':' .. r.tenant)
end)
return turns(call('LRANGE', P .. 'rr', 0, 999), r.tenant, within, function(tenant)
  return count('n:' .. tenant, 'queued')
end)
