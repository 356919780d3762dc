-- Removes exactly the messages that were peeked, or nothing.
--
--   KEYS  1 the list  2 the offset hash
--   ARGV  1 uuid  2 epoch  3 count  4 proof: sha1 (hex) of the messages' marks, oldest first  5 length of a tail
--         6 number of messages that the store has accepted
--
--   mark of a message    its length, a colon, and its tail
--
-- Where every message ends with kombu's delivery tag, a UUID made for each message, tails are long enough for the tag;
-- otherwise they are as long as the longest message, and at most 64 KiB. Messages pushed on the left meanwhile do not matter.

local SLICE = 256

local fields = redis.call('HMGET', KEYS[2], 'uuid', 'epoch', 'accepted')
local uuid, epoch, accepted = fields[1], fields[2], fields[3]
if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] then return {'missing'} end

local count = tonumber(ARGV[3])
if redis.call('LLEN', KEYS[1]) < count then return {'changed'} end
local tail, marks = tonumber(ARGV[5]), {}
while #marks < count do
  local size = math.min(SLICE, count - #marks)
  local slice = redis.call('LRANGE', KEYS[1], -(#marks + size), -(#marks + 1))
  for i = #slice, 1, -1 do marks[#marks + 1] = #slice[i] .. ':' .. string.sub(slice[i], -tail) end
end
if redis.sha1hex(table.concat(marks)) ~= ARGV[4] then return {'changed'} end

-- Before the messages go: what is gone from the queue is in the number. A full server may refuse this write.
if not accepted or accepted < ARGV[6] then redis.pcall('HSET', KEYS[2], 'accepted', ARGV[6]) end
redis.call('LTRIM', KEYS[1], 0, -(count + 1))
return {'trimmed'}
