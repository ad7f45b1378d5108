-- Is this the ledger that the data folder knows, and not an older state of it? ARGV: 1 the file's epoch or '', 2 its generation,
--   3 an id for a new epoch. Returns {epoch, born ms, generation, 'same' | 'first' | 'adopted' | 'lost' | 'rolled_back' | 'other'}
local have = call('HMGET', P .. 'epoch', 'id', 'born', 'generation')
local generation = tonumber(have[3] or '0')
local verdict
if not have[1] then
  verdict = ARGV[1] == '' and 'first' or 'lost'
elseif ARGV[1] == '' then
  verdict = 'adopted'
elseif ARGV[1] ~= have[1] then
  verdict = 'other'
elseif generation < tonumber(ARGV[2]) then
  verdict = 'rolled_back'
else
  verdict = 'same'
end
-- Whoever does not know this ledger may have been given the wrong one: believed as it is, but with nothing made before now at its mercy.
if verdict ~= 'same' then
  call('HSET', P .. 'epoch', 'born', NOW)
  call('HDEL', P .. 'clock', 'agreement')
end
if verdict ~= 'same' and verdict ~= 'adopted' then call('HSET', P .. 'epoch', 'id', ARGV[3]) end
generation = generation + 1
call('HSET', P .. 'epoch', 'generation', generation)
local now = call('HMGET', P .. 'epoch', 'id', 'born')
return {now[1], now[2], tostring(generation), verdict}
