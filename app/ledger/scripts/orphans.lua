-- What a full listing found. ARGV: 1 how many orphans there are now, 2... ids that were removed.
call('HSET', P .. 'orphans', 'now', ARGV[1])
for i = 2, #ARGV do
  call('HINCRBY', P .. 'orphans', 'reclaimed', 1)
  local r = load(ARGV[i])
  log_reclaim(ARGV[i], r and r.tenant or '', r and r.run or '', 'orphan', r and r.state or 'unknown', 'no live record claims it')
end
return 1
