-- Let the next sandboxes start: round robin over tenants, then over each tenant's runs, within the rate and the starting window.
-- ARGV: 1 worker, 2 limit, 3 claim ms, 4 initial rate, 5 window
-- Returns {blocked or '', retry after ms, still queued, record...}
-- Bad entries of the queue looked at in one call.
local MENDED_MOST = 100
local limit, claim_at = tonumber(ARGV[2]), NOW + tonumber(ARGV[3])
local pace = call('HMGET', P .. 'pace', 'rate', 'tokens', 'at', 'hold_until', 'window')
local rate = tonumber(pace[1] or ARGV[4])
local window = math.min(tonumber(pace[5] or ARGV[5]), tonumber(ARGV[5]))
-- A tenth of a second of rate may be saved up: enough for a loop that comes by each 20 ms, too little for a burst of its own.
local most = math.max(1, rate / 10)
local tokens = math.min(most, tonumber(pace[2] or '1') + rate * math.max(0, NOW - tonumber(pace[3] or NOW)) / 1000)
local hold_until = held_until(tonumber(pace[4] or '0'))
local in_flight = in_flight_now()
-- Beyond the window, tenants that have nothing in flight still get a first one: a burst whose starts are slow delays nobody else.
local reserve = math.max(2, math.floor(window / 8))

local blocked, retry, out = '', 0, {}
local function next_tenant()
  local all = call('LLEN', P .. 'rr')
  for _ = 1, math.min(all, 256) do
    local tenant = call('LMOVE', P .. 'rr', P .. 'rr', 'LEFT', 'RIGHT')
    if in_flight < window then return tenant end
    if count('n:' .. tenant, 'creating') + count('n:' .. tenant, 'starting') == 0 then return tenant end
  end
  return nil
end

-- The next one of a tenant. What contradicts the records leaves the queue on the way; nil when there was only such.
local function next_record(tenant)
  local run = call('LMOVE', P .. 'ql:' .. tenant, P .. 'ql:' .. tenant, 'LEFT', 'RIGHT')
  if not run then
    anomaly('misplaced', tenant .. ' has its turn and no queue')
    call('LREM', P .. 'rr', 0, tenant)
    return nil
  end
  local id = call('ZRANGE', P .. 'qz:' .. run .. ':' .. tenant, 0, 0)[1]
  local r = id and load(id)
  if r and r.state == 'queued' and r.tenant == tenant and (r.run or '-') == run then return r end
  if id and not r then drop(id, 'the queue of ' .. tenant) else anomaly('misplaced', (id or 'nothing') .. ' in the queue of ' .. tenant) end
  unqueue(id or '', tenant, run)
  if r and r.state ~= 'queued' then call('ZREM', P .. 'qall', id) end
  return nil
end

local mended = 0
while #out < limit and mended < MENDED_MOST do
  if call('EXISTS', P .. 'rr') == 0 then break end
  if hold_until > NOW then blocked, retry = 'hold', hold_until - NOW break end
  if tokens < 1 then blocked, retry = 'rate', math.ceil((1 - tokens) / rate * 1000) break end
  local tenant = in_flight < window + reserve and next_tenant() or nil
  if not tenant then blocked, retry = 'window', 100 break end
  local r = next_record(tenant)
  if r then
    move(r, 'creating', {worker = ARGV[1], claim_at = claim_at, attempts = 1})
    tokens = tokens - 1
    in_flight = in_flight + 1
    out[#out + 1] = dump(r.id)
  else
    mended = mended + 1
  end
end
call('HSET', P .. 'pace', 'rate', tostring(rate), 'tokens', string.format('%.4f', tokens), 'at', NOW, 'window', window)
return {blocked, retry, queued(), unpack(out)}
