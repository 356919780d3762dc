-- Sets a lane's offset without publishing.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 epoch  3 lane field  4 failed field  5 serial field  6 position  7 serial
--
-- Unlike `publish` this compares no position, so a request whose answer was lost, and which the network delivers
-- only after its repetition and after the publishes that followed, would put the offset back, and tasks would leave
-- twice. So every request has a serial that only grows within an epoch, and one that comes late is refused.

local held = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', ARGV[5])
local uuid, epoch, serial = held[1], held[2], held[3]

if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] then return {'missing'} end
if serial and serial >= ARGV[7] then return {'late', serial} end

-- What was refused belongs to the chunk after which the offset stood there.
redis.call('HSET', KEYS[1], ARGV[3], ARGV[6], ARGV[4], '{}', ARGV[5], ARGV[7], 'since' .. string.sub(ARGV[3], 5), '')
return {'set'}
