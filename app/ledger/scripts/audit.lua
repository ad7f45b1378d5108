-- Look over a piece of the records, oldest first, and put each back where it belongs: what no index names, nobody would ever take back.
-- ARGV: 1 after this place in the order of creation, 2 how many. Returns the place to go on after; '' at the end.
local flat = call('ZRANGEBYSCORE', P .. 'ix:all', '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])

local looked = {}
local function belongs(r, set, score)
  if not call('ZSCORE', P .. set, r.id) then
    anomaly('missing', r.id .. ' is ' .. r.state .. ' and not in ' .. set)
    call('ZADD', P .. set, score, r.id)
  end
end

for i = 1, #flat, 2 do
  local id = flat[i]
  local r = load(id)
  if not r then
    drop(id, 'ix:all')
  elseif LIVE[r.state] then
    if not call('ZSCORE', P .. 'due', id) then
      anomaly('missing', id .. ' is ' .. r.state .. ' and not in due')
      set_due(r)
    end
    if r.run and call('SADD', P .. 'live:' .. r.run, id) == 1 then anomaly('missing', id .. ' is not in live:' .. r.run) end
    if r.state == 'queued' then
      if not call('ZSCORE', queue_key(r), id) or not call('ZSCORE', P .. 'qall', id) then
        anomaly('missing', id .. ' is queued and in no queue')
        enqueue(r)
      elseif not looked[queue_key(r)] and not take_turns(r.tenant, r.run or '-') then
        anomaly('missing', r.tenant .. ' waits and has no turn')
      end
      looked[queue_key(r)] = true
    elseif r.state == 'creating' then
      belongs(r, 'claims', r.claim_at or NOW)
    elseif r.state == 'starting' then
      belongs(r, 'starting', r['at:starting'] or NOW)
    end
  elseif r['at:cleaned'] then
    belongs(r, 'ended', r['at:cleaned'])
  elseif not call('ZSCORE', P .. 'clean:urgent', id) then
    belongs(r, 'clean:bulk', NOW)
  end
end
return #flat == 2 * tonumber(ARGV[2]) and flat[#flat] or ''
