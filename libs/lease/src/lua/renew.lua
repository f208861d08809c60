-- KEYS: deadlines, then the leases.  ARGV: ttl, memory, then name, holder, fence of each lease.
-- Returns {outcome, holder, fence} for each, the latter two of whoever acquired it last.

local ttl, memory = tonumber(ARGV[1]), tonumber(ARGV[2])
local answers = {}
for i = 2, #KEYS do
    local at = 3 + (i - 2) * 3
    local name, holder, fence = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local last_holder, last_fence, ends = read(KEYS[i])
    local outcome
    if last_fence < fence then
        outcome = 'absent'
    elseif last_fence > fence or (last_holder ~= holder and last_holder ~= '') then
        outcome = 'superseded'
    elseif last_holder == '' or ends <= now then
        outcome = 'ended'
    else
        outcome = 'renewed'
        redis.call('HSET', KEYS[i], 'until', now + ttl)
        redis.call('PEXPIRE', KEYS[i], ttl + memory)
        redis.call('ZADD', KEYS[1], now + ttl, fence .. ' ' .. name)
    end
    answers[#answers + 1] = {outcome, last_holder, last_fence}
end
return answers
