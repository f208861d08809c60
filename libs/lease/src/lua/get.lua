-- KEYS: lease.  Returns {holder, fence, milliseconds left}, the last being 0 when it is not live.

local holder, fence, ends = read(KEYS[1])
return {holder, fence, math.max(ends - now, 0)}
