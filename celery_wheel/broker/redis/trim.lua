-- Removes exactly the messages that were peeked, or nothing.
--
--   KEYS  1 the list  2 the hand hash
--   ARGV  1 uuid  2 epoch  3 count  4 proof: sha1 of the sha1s (hex, oldest first) of the messages
--
-- A digest of digests, so that the messages need not be joined in memory; each has 40 digits, so no two
-- different rows of messages join to the same text. What is pushed on the left meanwhile does not matter.

local SLICE = 256

local held = redis.call('HMGET', KEYS[2], 'uuid', 'epoch')
local uuid, epoch = held[1], held[2]
if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] then return {'missing'} end

local count = tonumber(ARGV[3])
if redis.call('LLEN', KEYS[1]) < count then return {'changed'} end
local digests = {}
while #digests < count do
  local size = math.min(SLICE, count - #digests)
  local slice = redis.call('LRANGE', KEYS[1], -(#digests + size), -(#digests + 1))
  for i = #slice, 1, -1 do digests[#digests + 1] = redis.sha1hex(slice[i]) end
end
if redis.sha1hex(table.concat(digests)) ~= ARGV[4] then return {'changed'} end

redis.call('LTRIM', KEYS[1], 0, -(count + 1))
return {'trimmed'}
