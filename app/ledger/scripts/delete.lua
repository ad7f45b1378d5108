-- Take a sandbox back; one that is over already stays as it is. ARGV: 1 id, 2 reclaim, 3 detail. Returns the record; {} when unknown.
local r = load(ARGV[1])
if not r then return {} end
if LIVE[r.state] then give_up(r, ARGV[2], ARGV[3]) end
return dump(r.id)
