-- Checks that the last confirmed chunk of this epoch is still known, in the same time however many lanes there are.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 epoch  3 number of the last chunk that was confirmed

local held = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'last')
local uuid, epoch, last = held[1], held[2], held[3]

if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] or not last or last < ARGV[3] then return {'missing'} end

local time = redis.call('TIME')
-- A full server may refuse this write: the holder gets its answer all the same.
redis.pcall('HSET', KEYS[1], 'seen', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return {'verified'}
