-- What has to be removed from the backend now, urgent before bulk; each is kept from others for the claim.
-- ARGV: 1 limit, 2 claim ms. Returns {id, state, reclaim} each: a removal needs no more, so that no record can be in its way.
local limit, out = tonumber(ARGV[1]), {}
local again = NOW + tonumber(ARGV[2])
local function take(set, most)
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. set, '-inf', NOW, 'LIMIT', 0, most)) do
    local r = load(id)
    if not r then
      drop(id, set)
    elseif LIVE[r.state] or r['at:cleaned'] then
      anomaly('misplaced', id .. ' is ' .. r.state .. ' and in ' .. set)
      call('ZREM', P .. set, id)
    else
      call('ZADD', P .. set, again, id)
      out[#out + 1] = {id, r.state, r.reclaim or ''}
    end
  end
end
-- A quarter is left to bulk, so that a steady stream of urgent ones cannot keep ended runs alive.
take('clean:urgent', math.max(1, limit - math.floor(limit / 4)))
take('clean:bulk', limit - #out)
if #out < limit then take('clean:urgent', limit - #out) end
return out
