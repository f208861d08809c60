-- KEYS: epoch, deadlines, events.  ARGV: cursor's epoch or '', cursor, batch, events kept.
-- Returns {epoch, cursor, missed, more, members of the events after the cursor}. With a batch of 0
-- it only returns the epoch.

-- The mark goes with the data, the run id with the process: between them they tell a loss of data,
-- a restart from a snapshot and a failover from everyday life.
local mark = redis.call('GET', KEYS[1])
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
if not mark then
    mark = string.format('%.0f.%06d', time[1], time[2])
    redis.call('SET', KEYS[1], mark)
end
local epoch = mark .. '/' .. run
local seen, cursor, batch, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if batch == 0 then
    return {epoch, 0, 0, 0, {}}
end

local missed = 0
if seen == '' then
    cursor = last_event(KEYS[3])
elseif seen ~= epoch then
    cursor = 0
    missed = 1
end

local lapsed = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, batch)
for _, member in ipairs(lapsed) do
    report(KEYS[3], member, kept)
    redis.call('ZREM', KEYS[2], member)
end

local after = string.format('%.0f-1', cursor + 1)
local found = redis.call('XRANGE', KEYS[3], after, '+', 'COUNT', batch)
local members = {}
for i, entry in ipairs(found) do
    local number = tonumber(string.match(entry[1], '^%d+'))
    if i == 1 and number > cursor + 1 then
        missed = 1
    end
    cursor = number
    members[i] = entry[2][2]
end
local more = (#lapsed == batch or #members == batch) and 1 or 0
return {epoch, cursor, missed, more, members}
