-- What has to be removed from the backend now, urgent before bulk; each is kept from others for the claim.
-- ARGV: 1 limit, 2 claim ms. Returns records.
local limit, out = tonumber(ARGV[1]), {}
local again = NOW + tonumber(ARGV[2])
local function take(set, most)
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. set, '-inf', NOW, 'LIMIT', 0, most)) do
    call('ZADD', P .. set, again, id)
    out[#out + 1] = dump(id)
  end
end
-- A quarter is left to bulk, so that a steady stream of urgent ones cannot keep ended runs alive.
take('clean:urgent', math.max(1, limit - math.floor(limit / 4)))
take('clean:bulk', limit - #out)
if #out < limit then take('clean:urgent', limit - #out) end
return out
