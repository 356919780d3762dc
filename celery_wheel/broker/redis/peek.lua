-- The oldest messages of a queue, which stay in it.
--
--   KEYS  1 the list
--   ARGV  1 at most so many  2 at most so many bytes, but always one message
--
--   LPUSH ──► newest … … … … … oldest ──► BRPOP
--                    8  4  2 1             slices read from the old end, each twice the one before, up to 256:
--                                          a message of many megabytes costs no more reading than it must

local max_count, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local length = redis.call('LLEN', KEYS[1])
local found, bytes, size = {}, 0, 1

while #found < math.min(length, max_count) do
  local slice = redis.call('LRANGE', KEYS[1], -(#found + size), -(#found + 1))
  for i = #slice, 1, -1 do
    if #found > 0 and bytes + #slice[i] > max_bytes then return {1, found} end
    found[#found + 1] = slice[i]
    bytes = bytes + #slice[i]
  end
  local fitting = math.floor((max_bytes - bytes) / math.max(1, bytes / #found))
  size = math.max(1, math.min(2 * size, 256, max_count - #found, fitting))
end
return {length > #found and 1 or 0, found}
