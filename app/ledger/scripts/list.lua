-- One page of records, newest first, looking at a bounded number of them.
-- ARGV: 1 tenant or '', 2 run or '', 3 states joined by ',' or '', 4 labels as JSON object or '', 5 limit, 6 cursor or '', 7 how
--   many to look at
-- Returns {next cursor or '', record...}; a page may be short although more follow.
local index = P .. 'ix:all'
if ARGV[2] ~= '' then index = P .. 'ix:r:' .. ARGV[2] elseif ARGV[1] ~= '' then index = P .. 'ix:t:' .. ARGV[1] end
local wanted = {}
for state in string.gmatch(ARGV[3], '[^,]+') do wanted[state] = true end
local labels = ARGV[4] ~= '' and cjson.decode(ARGV[4]) or nil
local limit, look = tonumber(ARGV[5]), tonumber(ARGV[7])
local from = ARGV[6] ~= '' and '(' .. ARGV[6] or '+inf'

local function matches(id)
  local got = call('HMGET', P .. 'sb:' .. id, 'state', 'tenant', 'labels')
  if not got[1] then
    anomaly('lost', id .. ' is listed and has no record')
    call('ZREM', index, id)
    return false
  end
  if ARGV[3] ~= '' and not wanted[got[1]] then return false end
  if ARGV[1] ~= '' and got[2] ~= ARGV[1] then return false end
  if labels then
    local readable, own = pcall(cjson.decode, got[3] or '{}')
    if not readable then return false end
    for name, value in pairs(labels) do
      if own[name] ~= value then return false end
    end
  end
  return true
end

local flat = call('ZREVRANGEBYSCORE', index, from, '-inf', 'WITHSCORES', 'LIMIT', 0, look)
local out = {''}
for i = 1, #flat, 2 do
  if matches(flat[i]) then
    out[#out + 1] = dump(flat[i])
    if #out > limit then
      if i + 2 <= #flat or #flat == look * 2 then out[1] = flat[i + 1] end
      return out
    end
  end
end
if #flat == look * 2 then out[1] = flat[#flat] end
return out
