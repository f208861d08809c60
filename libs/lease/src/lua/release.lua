-- KEYS: lease, deadlines, events.  ARGV: name, holder, fence, memory, events kept.
-- Returns 1 when the caller held it until now.

local name, holder, fence, memory, kept = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local last_holder, last_fence, ends = read(KEYS[1])
local live = ends > now
local own = last_holder == holder and last_fence == fence
if not own and (live or last_fence >= fence) then
    return 0
end
if redis.call('ZREM', KEYS[2], last_fence .. ' ' .. name) == 1 and not own then
    report(KEYS[3], last_fence .. ' ' .. name, kept)
end
-- The fence stays, the holder goes: nobody comes back under this fence, not even by a request to
-- acquire that was sent before and arrives after this one.
redis.call('HSET', KEYS[1], 'holder', '', 'fence', fence, 'until', 0)
redis.call('PEXPIRE', KEYS[1], memory)
if own and live then
    return 1
end
return 0
