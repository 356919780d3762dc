-- Changes fields of lanes without publishing.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 epoch  3 serial  4 number of fields to delete  then these fields  then field, value, field, value …
--
-- Unlike `publish` this script compares no position. A request whose answer was lost, and which the network delivers
-- after its repetition and later publishes, would move an offset back or delete it, and tasks would be published twice.
-- So each request has a serial that only grows within an epoch, and the script refuses a late request.

local SLICE = 500

local fields = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'serial')
local uuid, epoch, serial = fields[1], fields[2], fields[3]

if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] then return {'missing'} end
if serial and serial >= ARGV[3] then return {'late', serial} end

redis.call('HSET', KEYS[1], 'serial', ARGV[3])
local last = 4 + tonumber(ARGV[4])
for at = 5, last, SLICE do redis.call('HDEL', KEYS[1], unpack(ARGV, at, math.min(at + SLICE - 1, last))) end
if #ARGV > last then redis.call('HSET', KEYS[1], unpack(ARGV, last + 1)) end
return {'changed'}
