-- A provision job says that it is at work. ARGV: 1 'begin' | 'still' | 'end', 2 ttl ms
-- `wake` marks a pending job: from its beginning on, a further create may make the next one.
if ARGV[1] == 'begin' then call('DEL', P .. 'wake') end
if ARGV[1] == 'end' then call('DEL', P .. 'draining') else call('SET', P .. 'draining', '1', 'PX', ARGV[2]) end
return 1
