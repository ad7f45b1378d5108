-- Signs of life for many at once: a lease is never shortened, and what its run holds needs none.
-- ARGV: 1 ms or '' (the sandbox's own length, or the hold while unclaimed), 2 hold ms, 3... ids
-- Returns one entry per id: '' when it is over, 'run' when its run holds it, else the lease's end.
local out = {}
for i = 3, #ARGV do
  local r = load(ARGV[i])
  local answer = ''
  if r and LIVE[r.state] then
    if not r.lease_at then
      answer = 'run'
    else
      local length = tonumber(ARGV[1])
      if not length then length = r.claimed and r.lease_ms or tonumber(ARGV[2]) end
      if NOW + length > r.lease_at then set_lease(r, NOW + length) end
      answer = tostring(r.lease_at)
    end
  end
  out[#out + 1] = answer
end
return out
