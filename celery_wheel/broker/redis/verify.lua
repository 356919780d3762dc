-- Checks that the hash still has the last confirmed chunk of this epoch; takes the same time for any number of lanes.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 epoch  3 number of the last chunk that was confirmed  4 number of messages the store has accepted

local fields = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'last', 'accepted')
local uuid, epoch, last, accepted = fields[1], fields[2], fields[3], fields[4]

if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] or not last or last < ARGV[3] then return {'missing'} end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
if not accepted or accepted < ARGV[4] then accepted = ARGV[4] end
-- A full server may refuse this write; the holder still gets its answer.
redis.pcall('HSET', KEYS[1], 'seen', now, 'accepted', accepted)
return {'verified'}
