-- Nothing of it is left in the backend. ARGV: 1 id. Returns 1; 0 when there was nothing to do, or a create is still in flight (then it
-- comes up again when that has let go).
local r = load(ARGV[1])
if not r then return 0 end
if r.state ~= 'deleting' and not (r.state == 'failed' and
    (call('ZSCORE', P .. 'clean:urgent', r.id) or call('ZSCORE', P .. 'clean:bulk', r.id))) then return 0 end
if r.claim_at and r.claim_at > NOW and r.worker and not r['at:starting'] then
  for _, set in ipairs({'clean:urgent', 'clean:bulk'}) do
    if call('ZSCORE', P .. set, r.id) then call('ZADD', P .. set, r.claim_at, r.id) end
  end
  return 0
end
if r.state == 'deleting' then move(r, 'deleted') else finish(r) end
return 1
