-- Whole records. ARGV: ids. Returns one flat list each; an unknown id gives an empty one.
local out = {}
for i, id in ipairs(ARGV) do
  if call('EXISTS', P .. 'sb:' .. id) == 1 then out[i] = dump(id) else out[i] = {} end
end
return out
