-- What a comparison with the backend needs of many records. ARGV: ids. Returns {state, at:starting or '', at:cleaned or ''} each; an
-- unknown id gives an empty one.
local out = {}
for i, id in ipairs(ARGV) do
  local got = call('HMGET', P .. 'sb:' .. id, 'state', 'at:starting', 'at:cleaned')
  out[i] = got[1] and {got[1], got[2] or '', got[3] or ''} or {}
end
return out
