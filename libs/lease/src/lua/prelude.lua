-- Stands before each script of leases. All keys of a key space share a hash tag, hence a slot.
-- A lease is a hash {holder, fence, until}; `until` is in milliseconds of this server's clock.
-- Fences are 20 digits with leading zeros: text compares like numbers, and Lua's doubles do not
-- round them. A member of the deadlines is the fence, a blank and the lease's own name.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function read(key)
    local found = redis.call('HMGET', key, 'holder', 'fence', 'until')
    return found[1] or '', found[2] or '', tonumber(found[3] or 0)
end

-- Events are numbered without gaps, so that a reader sees when some are missing.
local function last_event(events)
    local newest = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)
    if #newest == 0 then
        return 0
    end
    return tonumber(string.match(newest[1][1], '^%d+'))
end

local function report(events, member, kept)
    local id = string.format('%.0f-1', last_event(events) + 1)
    redis.call('XADD', events, 'MAXLEN', '~', kept, id, 'lease', member)
end
