-- KEYS: bucket.  ARGV: advance, window, both in microseconds.
-- The bucket's mark says until when its refill is spoken for. Returns {allowed, microseconds}: how
-- far the mark is ahead now, or after how long the request would fit.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local advance, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local mark = tonumber(redis.call('GET', KEYS[1]) or 0)
-- The upper bound matters when this server's clock was set back.
mark = math.min(math.max(mark, now), now + window)
local ahead = mark + advance - now
if ahead > window then
    return {0, ahead - window}
end
if advance > 0 then
    redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
end
return {1, ahead}
