-- Move a sandbox on as the backend showed it. ARGV: 1 id, 2 'starting' | 'ready' | 'failed', then for starting: 3 address,
--   4 enforced; for failed: 3 reason, 4 detail, 5 '1' when final. Returns 1, or 0 when it had moved on already.
local r = load(ARGV[1])
local to = ARGV[2]
if not r or not FORWARD[r.state][to] then return 0 end
if to == 'failed' then
  fail(r, ARGV[3], ARGV[4], ARGV[5])
elseif to == 'starting' then
  move(r, to, {address = ARGV[3], enforced = ARGV[4]})
else
  move(r, to)
end
return 1
