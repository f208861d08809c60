-- KEYS: lease, deadlines, events.  ARGV: name, holder, fence, ttl, memory, events kept.
-- Returns {outcome, holder, fence, milliseconds left}.

local name, holder, fence = ARGV[1], ARGV[2], ARGV[3]
local ttl, memory, kept = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local last_holder, last_fence, ends = read(KEYS[1])
local live = ends > now

if fence < last_fence then
    return {'stale', last_holder, last_fence, 0}
end
if last_holder ~= holder then
    if live then
        return {'held', last_holder, last_fence, ends - now}
    end
    -- Equal after a release too, since that clears the holder: the fence has had its life.
    if fence == last_fence then
        return {'stale', last_holder, last_fence, 0}
    end
end

if fence ~= last_fence and last_fence ~= '' then
    local member = last_fence .. ' ' .. name
    if redis.call('ZREM', KEYS[2], member) == 1 and not live then
        -- It ran out and no sweep has seen it yet.
        report(KEYS[3], member, kept)
    end
end
redis.call('HSET', KEYS[1], 'holder', holder, 'fence', fence, 'until', now + ttl)
redis.call('PEXPIRE', KEYS[1], ttl + memory)
redis.call('ZADD', KEYS[2], now + ttl, fence .. ' ' .. name)
return {'acquired', holder, fence, ttl}
